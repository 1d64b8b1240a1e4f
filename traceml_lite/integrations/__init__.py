"""Other people's formats and frameworks, one file each."""
