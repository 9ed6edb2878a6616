"""The tasks of the page: their data, the language of their criteria, and how a learner's setup is judged."""
