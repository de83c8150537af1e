//! Pending changes from outside: a real store, the real actor, a provider that counts.

mod life;
