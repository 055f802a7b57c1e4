"""Learning to Ask on the run's actors: units, stages and evaluations."""
