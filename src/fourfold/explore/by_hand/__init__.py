"""A collective by hand: messages that a person places step by step, judged and priced by the engine at every move."""
