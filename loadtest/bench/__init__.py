"""The lock benchmark: every backend beside a bare floor and beside other libraries."""
