//! Models that other programs run: embeddings and answers.
