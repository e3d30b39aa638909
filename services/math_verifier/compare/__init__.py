"""Deciding whether two parsed answers are the same, by stages from cheap and exact to costly."""
