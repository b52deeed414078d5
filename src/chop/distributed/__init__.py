"""The parallel back end: plan how a graph is split over a mesh of devices, and run the plan."""
