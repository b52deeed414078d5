"""Number formats, and the layers that compute with them."""
