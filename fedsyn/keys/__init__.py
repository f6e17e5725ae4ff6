"""What every process of a federation needs beside its protocol: health, keys, TLS, files whole after a crash."""
