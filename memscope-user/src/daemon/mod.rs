//! Traces scripts that ask for it, so that they need no rights of their own.
//!
//! The daemon itself traces nothing. It identifies the peer (`peer`), reads the request (`protocol`), counts
//! (`limits`), and starts a tracer for that one process, which takes on the user's rights (`rights`) before it opens an
//! output (`place`). All data from the socket is hostile: bounded, checked, escaped. See `docs/daemon.md`.

pub mod limits;
pub mod listen;
pub mod peer;
pub mod place;
pub mod protocol;
pub mod rights;
