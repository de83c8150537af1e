//! Maps that are looked into with every request.

use std::collections::HashMap;

/// A map with a hash that costs a tenth of the standard one's. It is seeded at random, but its author promises less
/// about an attacker who chooses keys: it is for keys that are the gateway's own or the configuration's, or of which
/// outsiders can add few.
pub type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
