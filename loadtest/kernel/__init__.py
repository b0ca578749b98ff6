"""The one kind of everything that the experiments of the lab share."""
