//! One collection of one tenant: its documents, their words and their vectors, and how they are ranked.
