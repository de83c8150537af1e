//! Tests of the screen as text.
