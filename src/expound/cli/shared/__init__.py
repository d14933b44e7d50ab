"""Code that several commands share: options, early checks, output, threads, signals."""
