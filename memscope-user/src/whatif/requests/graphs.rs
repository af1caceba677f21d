//! Pools of captured graphs: which requests are of one, and when the last graph of one is given up.

use crate::hash::HashMap;
use crate::model::{Graph, GraphChange};

/// Most pools of their own; further ones count as the default pool.
const MAX_POOLS: u16 = 1 << 13;
/// Most graphs at a time.
const MAX_GRAPHS: usize = 1 << 16;
/// Streams of one capture.
const MAX_STREAMS: usize = 64;

/// Its number, as the allocator has it.
type PoolId = (u64, u64);

/// A capture under way.
#[derive(Debug)]
struct Capture {
    handle: u64,
    tid: u32,
    private: u16,
    /// Streams on which its thread has made requests: other threads' requests on them are of the capture, too.
    streams: Vec<u64>,
}

/// The graphs of a process.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    captures: Vec<Capture>,
    /// The pools of graphs, by the graph's handle.
    of_graph: HashMap<u64, PoolId>,
    /// Numbers and graphs of pools that are in use.
    pools: HashMap<PoolId, (u16, u32)>,
    /// Graphs that had a pool made for them: those are numbered in their order.
    unnamed: u64,
    count: u16,
}

impl Graphs {
    /// Takes a change; gives the pool that no graph uses any more.
    pub(super) fn change(&mut self, tid: u32, graph: &Graph) -> Option<u16> {
        let handle = graph.handle;
        match graph.change {
            GraphChange::Begins { pool } => self.begin(tid, handle, pool),
            GraphChange::Ends => self.captures.retain(|capture| capture.handle != handle),
            GraphChange::Reset => return self.reset(handle),
        }
        None
    }

    fn begin(&mut self, tid: u32, handle: u64, named: PoolId) {
        self.unnamed += u64::from(named == (0, 0));
        let id = if named == (0, 0) { (self.unnamed, 0) } else { named };
        let is_known = self.pools.contains_key(&id);
        if self.of_graph.len() >= MAX_GRAPHS || (!is_known && self.count >= MAX_POOLS) {
            return;
        }
        self.count += u16::from(!is_known);
        let (private, graphs) = self.pools.entry(id).or_insert((self.count, 0));
        *graphs += 1;
        self.captures.retain(|capture| capture.tid != tid);
        self.captures.push(Capture { handle, tid, private: *private, streams: Vec::new() });
        self.of_graph.insert(handle, id);
    }

    /// A graph is given up more than once: by the program, and when its object goes.
    fn reset(&mut self, handle: u64) -> Option<u16> {
        if self.captures.iter().any(|capture| capture.handle == handle) {
            return None;
        }
        let id = self.of_graph.remove(&handle)?;
        let (private, graphs) = self.pools.get_mut(&id)?;
        *graphs -= 1;
        let released = (*graphs == 0).then_some(*private);
        if released.is_some() {
            self.pools.remove(&id);
        }
        released
    }

    /// The pool that a request is made to: 0 is the default one.
    pub(super) fn pool_of(&mut self, tid: u32, stream: u64) -> u16 {
        if self.captures.is_empty() {
            return 0;
        }
        if let Some(own) = self.captures.iter_mut().find(|capture| capture.tid == tid) {
            if !own.streams.contains(&stream) && own.streams.len() < MAX_STREAMS {
                own.streams.push(stream);
            }
            return own.private;
        }
        self.captures.iter().find(|capture| capture.streams.contains(&stream)).map_or(0, |capture| capture.private)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begins(graphs: &mut Graphs, tid: u32, handle: u64, pool: PoolId) {
        assert_eq!(graphs.change(tid, &Graph { handle, change: GraphChange::Begins { pool } }), None);
    }

    fn ends(graphs: &mut Graphs, handle: u64) {
        assert_eq!(graphs.change(1, &Graph { handle, change: GraphChange::Ends }), None);
    }

    fn reset(graphs: &mut Graphs, handle: u64) -> Option<u16> {
        graphs.change(1, &Graph { handle, change: GraphChange::Reset })
    }

    /// Requests between begin and end, of the thread, and of others on its streams.
    #[test]
    fn requests_of_a_capture() {
        let mut graphs = Graphs::default();
        assert_eq!(graphs.pool_of(1, 5), 0);
        begins(&mut graphs, 1, 0xa, (0, 3));
        assert_eq!([(2, 5), (1, 5), (2, 5), (2, 6)].map(|(tid, stream)| graphs.pool_of(tid, stream)), [0, 1, 1, 0]);
        ends(&mut graphs, 0xa);
        assert_eq!([(1, 5), (2, 5)].map(|(tid, stream)| graphs.pool_of(tid, stream)), [0, 0]);
    }

    /// Graphs share a pool by its number, which may be that of a pool that was made for the first of them. It goes with the last.
    #[test]
    fn pools_are_shared() {
        let mut graphs = Graphs::default();
        let mut pools = Vec::new();
        for (handle, pool) in [(1, (0, 0)), (2, (0, 9)), (3, (1, 0)), (4, (0, 0)), (5, (0, 9))] {
            begins(&mut graphs, 1, handle, pool);
            pools.push(graphs.pool_of(1, 5));
            ends(&mut graphs, handle);
        }
        assert_eq!(pools, [1, 2, 1, 3, 2]);
        assert_eq!(
            [1, 1, 4, 2, 3, 5].map(|handle| reset(&mut graphs, handle)),
            [None, None, Some(3), None, Some(1), Some(2)]
        );
        // With a number that was given up another pool is made.
        begins(&mut graphs, 1, 6, (0, 9));
        assert_eq!(graphs.pool_of(1, 5), 4);
    }

    /// A capture that failed is not given up before it has ended; the thread's next one replaces it.
    #[test]
    fn captures_that_fail() {
        let mut graphs = Graphs::default();
        begins(&mut graphs, 1, 7, (0, 1));
        assert_eq!(reset(&mut graphs, 7), None);
        begins(&mut graphs, 1, 8, (0, 2));
        assert_eq!(graphs.pool_of(1, 5), 2);
        assert_eq!(reset(&mut graphs, 99), None);
    }
}
