"""
Decisions as pure functions: readings in, plan out; no I/O, no clock, no state.
"""
