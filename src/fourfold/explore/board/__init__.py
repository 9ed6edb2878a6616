"""The board: a schedule that a person builds entry by entry, judged by the verifier and priced by the simulator at every move."""
