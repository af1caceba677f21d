//! Python stacks.

use super::Site;
use crate::maps::Thread;

/// Puts the id of the thread's Python stack into its record.
#[inline(always)]
pub(crate) fn take(site: &Site<'_>, thread: &mut Thread) {
    let _ = (site.ctx, site.state.generation, site.row);
    thread.call.python_stack = 0;
}
