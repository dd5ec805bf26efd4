"""Sites behind Flower: the same `ask` as the other engines, over Flower's Message API.

`fleet` is the coordinator's end, `wire` says what a message holds. Flower is an extra: nothing here imports
it before it is used.
"""
