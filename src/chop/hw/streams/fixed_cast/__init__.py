"""Cast of one number: rounding and saturation."""
