"""The fixes of s3prl."""
