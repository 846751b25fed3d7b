"""Python types as schemas of JSON values, and values of them from JSON and back."""
