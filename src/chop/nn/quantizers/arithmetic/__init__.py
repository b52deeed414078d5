"""Softmax, normalisation and functions by table in integers: exactly what the hardware computes.

They act on codes (int64) of the format `integer` and have no division, no root and no exponential:
tables of a stated size, products and shifts. A config asks for them with `arithmetic = "integer"`.
Each file states its definition and the bound of its error in units of the result's last place.
"""
