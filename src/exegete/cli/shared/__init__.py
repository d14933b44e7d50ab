"""Parts that commands share: options, checks of what is given, output, threads, stopping."""
