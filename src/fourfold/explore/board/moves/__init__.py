"""The board's programs: sends, gathers and frees that a person moves, judged by the verifier and priced by the simulator."""
