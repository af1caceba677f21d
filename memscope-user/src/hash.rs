//! Hash tables for lookups at every event.
//!
//! Keys come from traced programs (addresses, texts, stacks), so tables are seeded: the hasher takes a new seed for
//! each table, unknown to programs. It is several times faster than the standard one, which took a third of the
//! analyses' time.

use foldhash::fast::RandomState;

/// As the standard one.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
/// As the standard one.
pub(crate) type HashSet<T> = std::collections::HashSet<T, RandomState>;
