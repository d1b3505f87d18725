"""A model and its loss as functions of one flat parameter vector; datasets, splits, tasks and models."""
