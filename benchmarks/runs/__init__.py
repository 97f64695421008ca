"""What to measure, as files: `gossamer figures --run NAME`. A suite is NAME.toml in this folder."""
