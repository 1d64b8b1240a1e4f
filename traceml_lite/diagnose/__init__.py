"""Every number and verdict that a report shows is computed here, from records, without effects."""
