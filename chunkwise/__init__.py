"""The spine shared by qchunk, openpi_ript and driving: no robots, no cars, no papers."""
