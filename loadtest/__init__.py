"""The lab: scenarios, private servers, faults, the checker and its reports."""
