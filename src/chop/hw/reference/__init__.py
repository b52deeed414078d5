"""Independent reference: every op by its definition, in exact rational arithmetic."""
