//! Native stacks.

use super::Site;
use crate::maps::Thread;

/// Puts the id of the thread's native stack into its record.
#[inline(always)]
pub(crate) fn take(site: &Site<'_>, thread: &mut Thread) {
    let _ = (site.ctx, site.state.generation, site.row);
    thread.call.native_stack = 0;
}
