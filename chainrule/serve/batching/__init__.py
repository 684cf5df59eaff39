"""Batching: rows of requests in calls of fixed shapes, for the engine of the server."""
