//! Documents as text: front matter, Markdown, chunks, types and their schemas.
