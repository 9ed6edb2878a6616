"""Where the ranks of a run meet: a small store of keys and values, open to those alone who know the run's secret."""
