//! Projects and their folders: files that nothing leads out of, what is synchronized and watched.
