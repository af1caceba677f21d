//! Pools of their own within the pool, of captured graphs and of `MemPool`s: which requests are of one, and when nothing
//! holds one any more.
//!
//! The allocator's own calls say it for every pool. Recordings without them have the calls of graphs alone.

use std::collections::BTreeMap;

use crate::hash::HashMap;
use crate::model::{Graph, GraphChange, OwnPool, OwnRules};

/// Most pools of their own; further ones count as the default pool.
const MAX_POOLS: u16 = 1 << 13;
/// Most graphs, or objects, at a time.
const MAX_HOLDERS: usize = 1 << 16;
/// Most uses of pools at a time.
const MAX_USES: usize = 1 << 10;
/// Streams of one capture.
const MAX_STREAMS: usize = 64;

/// Its number, as the allocator has it.
type PoolId = (u64, u64);

/// The requests of a use.
#[derive(Debug, PartialEq, Eq)]
enum Who {
    /// None yet: a graph that has its own pool is about to be captured.
    Nothing,
    /// All.
    All,
    /// Those of its thread.
    Thread,
    /// Those of its thread, and those of others on streams on which its thread has made requests, while a graph is captured.
    Capture { handle: u64, streams: Vec<u64> },
}

/// A use under way.
#[derive(Debug)]
struct Use {
    id: PoolId,
    private: u16,
    tid: u32,
    /// `None`: any.
    device: Option<u8>,
    who: Who,
}

impl Use {
    fn is_of(&self, handle: u64) -> bool {
        matches!(self.who, Who::Capture { handle: own, .. } if own == handle)
    }

    /// Whether it takes a request.
    fn takes(&mut self, tid: u32, device: u8, stream: u64) -> bool {
        let is_own = self.tid == tid;
        if self.device.is_some_and(|own| own != device) {
            return false;
        }
        match &mut self.who {
            Who::Nothing => false,
            Who::All => true,
            Who::Thread => is_own,
            Who::Capture { streams, .. } => {
                let known = streams.contains(&stream);
                if is_own && !known && streams.len() < MAX_STREAMS {
                    streams.push(stream);
                }
                is_own || known
            }
        }
    }
}

/// A pool that something holds.
#[derive(Debug)]
struct Held {
    private: u16,
    holders: u32,
    /// An object is among them.
    of_object: bool,
}

/// An object `MemPool`.
#[derive(Debug)]
struct Object {
    id: PoolId,
    of_thread: bool,
}

/// A pool that nothing holds any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unheld {
    pub(super) private: u16,
    /// It gives its memory back at once.
    pub(super) emptied: bool,
}

/// The pools of their own of a process.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    uses: Vec<Use>,
    pools: HashMap<PoolId, Held>,
    count: u16,
    /// By their addresses.
    objects: HashMap<u64, Object>,
    /// Rules of pools that have some, of the past ones too.
    pub(super) rules: BTreeMap<u16, OwnRules>,
    /// Releases with uses of threads ask the last use first.
    last_first: bool,
    /// Thread and pool of the object that went last: its own call for that is not a second one.
    gone: Option<(u32, PoolId)>,
    /// Without the allocator's calls: the pools of graphs, by the graph's address.
    of_graph: HashMap<u64, PoolId>,
    /// Graphs that had a pool made for them: those are numbered in their order.
    unnamed: u64,
}

impl Graphs {
    /// Takes a change of a graph.
    pub(super) fn change(&mut self, tid: u32, graph: &Graph) -> Option<Unheld> {
        let handle = graph.handle;
        match graph.change {
            GraphChange::Begins { pool } => self.capture(tid, handle, pool),
            GraphChange::Ends => self.uses.retain(|of_use| !of_use.is_of(handle)),
            GraphChange::Reset => return self.reset(tid, handle),
        }
        None
    }

    /// Takes a call of the allocator, or a change of an object.
    pub(super) fn change_own(&mut self, tid: u32, device: Option<u8>, own: &OwnPool) -> Option<Unheld> {
        match *own {
            OwnPool::Made { handle, pool, rules } => {
                self.last_first |= rules.of_thread;
                if self.objects.len() < MAX_HOLDERS && self.hold_by_object(pool) {
                    self.objects.insert(handle, Object { id: pool, of_thread: rules.of_thread });
                    if rules != OwnRules::default()
                        && let Some(held) = self.pools.get(&pool)
                    {
                        self.rules.insert(held.private, rules);
                    }
                }
            }
            OwnPool::Gone { handle } => {
                let id = self.objects.remove(&handle)?.id;
                self.gone = Some((tid, id));
                return self.release(id).map(|private| Unheld { private, emptied: true });
            }
            OwnPool::Begins { pool } => self.begin(tid, device, pool),
            OwnPool::Ends { pool } => {
                let ended = self.uses.iter().position(|of_use| of_use.id == pool && of_use.device == device);
                if let Some(ended) = ended {
                    let ended = self.uses.remove(ended);
                    // Only objects are used so. One from before the recording holds its pool, too.
                    let is_object = matches!(ended.who, Who::All | Who::Thread);
                    if is_object && self.pools.get(&pool).is_some_and(|held| !held.of_object) {
                        self.hold_by_object(pool);
                    }
                }
            }
            OwnPool::Released { pool } => {
                if self.gone.take_if(|gone| *gone == (tid, pool)).is_none() {
                    return self.release(pool).map(|private| Unheld { private, emptied: false });
                }
            }
        }
        None
    }

    /// One more holds the pool; gives its number here.
    fn hold(&mut self, id: PoolId) -> Option<u16> {
        let is_known = self.pools.contains_key(&id);
        if !is_known && self.count >= MAX_POOLS {
            return None;
        }
        self.count += u16::from(!is_known);
        let held = self.pools.entry(id).or_insert(Held { private: self.count, holders: 0, of_object: false });
        held.holders += 1;
        Some(held.private)
    }

    fn hold_by_object(&mut self, id: PoolId) -> bool {
        self.hold(id);
        self.pools.get_mut(&id).is_some_and(|held| {
            held.of_object = true;
            true
        })
    }

    /// One less holds it; gives its number if nothing does.
    fn release(&mut self, id: PoolId) -> Option<u16> {
        let held = self.pools.get_mut(&id)?;
        held.holders -= 1;
        let private = held.private;
        if held.holders > 0 {
            return None;
        }
        self.pools.remove(&id);
        Some(private)
    }

    fn begin(&mut self, tid: u32, device: Option<u8>, id: PoolId) {
        let Some(private) = self.hold(id).filter(|_| self.uses.len() < MAX_USES) else { return };
        let object = self.objects.values().find(|object| object.id == id);
        let who = match object {
            // A number of this kind is made for one graph.
            _ if id.0 != 0 => Who::Nothing,
            Some(Object { of_thread: true, .. }) => Who::Thread,
            _ => Who::All,
        };
        self.uses.push(Use { id, private, tid, device, who });
    }

    /// A capture has begun: the thread's last use is for it.
    fn capture(&mut self, tid: u32, handle: u64, named: PoolId) {
        let mut own = self.uses.iter_mut().rev().filter(|of_use| of_use.tid == tid);
        let known = own.next().filter(|last| !matches!(last.who, Who::Capture { .. }));
        if let Some(known) = known {
            known.who = Who::Capture { handle, streams: Vec::new() };
            return;
        }
        self.unnamed += u64::from(named == (0, 0));
        let id = if named == (0, 0) { (self.unnamed, 0) } else { named };
        let has_room = self.of_graph.len() < MAX_HOLDERS && self.uses.len() < MAX_USES;
        let Some(private) = has_room.then(|| self.hold(id)).flatten() else { return };
        self.uses.retain(|of_use| of_use.tid != tid);
        let who = Who::Capture { handle, streams: Vec::new() };
        self.uses.push(Use { id, private, tid, device: None, who });
        self.of_graph.insert(handle, id);
    }

    /// A graph is given up more than once: by the program, and when its object goes.
    fn reset(&mut self, tid: u32, handle: u64) -> Option<Unheld> {
        self.gone.take_if(|(gone, _)| *gone == tid);
        if self.uses.iter().any(|of_use| of_use.is_of(handle)) {
            return None;
        }
        let id = self.of_graph.remove(&handle)?;
        self.release(id).map(|private| Unheld { private, emptied: false })
    }

    /// Whether an object holds a pool.
    pub(super) fn is_of_object(&self, private: u16) -> bool {
        self.pools.values().any(|held| held.private == private && held.of_object)
    }

    /// The pool that a request is made to: of the uses under way the first asked that takes it; 0 is the default one.
    pub(super) fn pool_of(&mut self, tid: u32, device: u8, stream: u64) -> u16 {
        let takes = |of_use: &mut Use| of_use.takes(tid, device, stream).then_some(of_use.private);
        let mut uses = self.uses.iter_mut();
        let private = if self.last_first { uses.rev().find_map(takes) } else { uses.find_map(takes) };
        private.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_THREAD: OwnRules = OwnRules { of_thread: true, on_oom: false, no_split: false };

    fn begins(graphs: &mut Graphs, tid: u32, handle: u64, pool: PoolId) {
        assert_eq!(graphs.change(tid, &Graph { handle, change: GraphChange::Begins { pool } }), None);
    }

    fn ends(graphs: &mut Graphs, handle: u64) {
        assert_eq!(graphs.change(1, &Graph { handle, change: GraphChange::Ends }), None);
    }

    fn reset(graphs: &mut Graphs, handle: u64) -> Option<u16> {
        let unheld = graphs.change(1, &Graph { handle, change: GraphChange::Reset })?;
        assert!(!unheld.emptied);
        Some(unheld.private)
    }

    fn own(graphs: &mut Graphs, tid: u32, own: OwnPool) -> Option<Unheld> {
        graphs.change_own(tid, Some(0), &own)
    }

    /// A graph is captured in a pool, by the allocator's calls.
    fn captured(graphs: &mut Graphs, handle: u64, pool: PoolId) {
        own(graphs, 1, OwnPool::Begins { pool });
        begins(graphs, 1, handle, pool);
        ends(graphs, handle);
        own(graphs, 1, OwnPool::Ends { pool });
    }

    /// Requests between begin and end, of the thread, and of others on its streams.
    #[test]
    fn requests_of_a_capture() {
        let mut graphs = Graphs::default();
        assert_eq!(graphs.pool_of(1, 0, 5), 0);
        begins(&mut graphs, 1, 0xa, (0, 3));
        assert_eq!([(2, 5), (1, 5), (2, 5), (2, 6)].map(|(tid, stream)| graphs.pool_of(tid, 0, stream)), [0, 1, 1, 0]);
        ends(&mut graphs, 0xa);
        assert_eq!([(1, 5), (2, 5)].map(|(tid, stream)| graphs.pool_of(tid, 0, stream)), [0, 0]);
    }

    /// Graphs share a pool by its number, which may be that of a pool that was made for the first of them. It goes with the last.
    #[test]
    fn pools_are_shared() {
        let mut graphs = Graphs::default();
        let mut pools = Vec::new();
        for (handle, pool) in [(1, (0, 0)), (2, (0, 9)), (3, (1, 0)), (4, (0, 0)), (5, (0, 9))] {
            begins(&mut graphs, 1, handle, pool);
            pools.push(graphs.pool_of(1, 0, 5));
            ends(&mut graphs, handle);
        }
        assert_eq!(pools, [1, 2, 1, 3, 2]);
        assert_eq!(
            [1, 1, 4, 2, 3, 5].map(|handle| reset(&mut graphs, handle)),
            [None, None, Some(3), None, Some(1), Some(2)]
        );
        // With a number that was given up another pool is made.
        begins(&mut graphs, 1, 6, (0, 9));
        assert_eq!(graphs.pool_of(1, 0, 5), 4);
    }

    /// A capture that failed is not given up before it has ended; the thread's next one replaces it.
    #[test]
    fn captures_that_fail() {
        let mut graphs = Graphs::default();
        begins(&mut graphs, 1, 7, (0, 1));
        assert_eq!(reset(&mut graphs, 7), None);
        begins(&mut graphs, 1, 8, (0, 2));
        assert_eq!(graphs.pool_of(1, 0, 5), 2);
        assert_eq!(reset(&mut graphs, 99), None);
    }

    /// The allocator's calls around a capture, in the order of `torch_npu`: the pool is the one that they name, and it goes with their
    /// last, wherever the graph itself is given up.
    #[test]
    fn captures_by_calls_of_the_allocator() {
        let mut graphs = Graphs::default();
        own(&mut graphs, 1, OwnPool::Begins { pool: (5, 0) });
        assert_eq!([1, 2].map(|tid| graphs.pool_of(tid, 0, 7)), [0, 0]);
        begins(&mut graphs, 1, 0xa, (0, 0));
        assert_eq!([(1, 0), (2, 0), (1, 1)].map(|(tid, device)| graphs.pool_of(tid, device, 7)), [1, 1, 0]);
        ends(&mut graphs, 0xa);
        own(&mut graphs, 1, OwnPool::Ends { pool: (5, 0) });
        assert_eq!(graphs.pool_of(1, 0, 7), 0);
        assert_eq!(reset(&mut graphs, 0xa), None);
        let released = own(&mut graphs, 1, OwnPool::Released { pool: (5, 0) });
        assert_eq!(released, Some(Unheld { private: 1, emptied: false }));
    }

    /// Requests of the thread alone in a release of that kind, else of all, on the device. The pool stays while its object does.
    #[test]
    fn uses_of_objects() {
        for (of_thread, others) in [(true, 0), (false, 1)] {
            let mut graphs = Graphs::default();
            own(
                &mut graphs,
                1,
                OwnPool::Made { handle: 0xb, pool: (0, 1), rules: OwnRules { of_thread, ..OwnRules::default() } },
            );
            for _ in 0..2 {
                own(&mut graphs, 1, OwnPool::Begins { pool: (0, 1) });
                assert_eq!(
                    [(1, 0), (2, 0), (1, 1)].map(|(tid, device)| graphs.pool_of(tid, device, 7)),
                    [1, others, 0]
                );
                own(&mut graphs, 1, OwnPool::Ends { pool: (0, 1) });
                assert_eq!(own(&mut graphs, 1, OwnPool::Released { pool: (0, 1) }), None);
                assert_eq!(graphs.pool_of(1, 0, 7), 0);
            }
            assert_eq!(own(&mut graphs, 1, OwnPool::Gone { handle: 0xb }), Some(Unheld { private: 1, emptied: true }));
            // Its own call for that, which some releases make another way.
            assert_eq!(own(&mut graphs, 1, OwnPool::Released { pool: (0, 1) }), None);
        }
    }

    /// Rules are those of the pool's number here, and stay known when the object is gone.
    #[test]
    fn rules_of_objects() {
        let mut graphs = Graphs::default();
        let with_rules = OwnRules { on_oom: true, ..OF_THREAD };
        for (handle, pool, rules) in [(1, (0, 1), OF_THREAD), (2, (0, 2), with_rules)] {
            own(&mut graphs, 1, OwnPool::Made { handle, pool, rules });
            own(&mut graphs, 1, OwnPool::Gone { handle });
        }
        assert_eq!(graphs.rules, [(1, OF_THREAD), (2, with_rules)].into());
    }

    /// A graph holds the pool of an object on.
    #[test]
    fn a_graph_in_the_pool_of_an_object() {
        let mut graphs = Graphs::default();
        own(&mut graphs, 1, OwnPool::Made { handle: 0xb, pool: (0, 1), rules: OF_THREAD });
        captured(&mut graphs, 0xa, (0, 1));
        assert_eq!(own(&mut graphs, 1, OwnPool::Gone { handle: 0xb }), None);
        assert_eq!(reset(&mut graphs, 0xa), None);
        let released = own(&mut graphs, 1, OwnPool::Released { pool: (0, 1) });
        assert_eq!(released, Some(Unheld { private: 1, emptied: false }));
    }

    /// Nested uses: in releases with uses of threads the inner one takes the request, in others the outer one.
    #[test]
    fn nested_uses() {
        for (of_thread, taken) in [(true, 2), (false, 1)] {
            let mut graphs = Graphs::default();
            for (handle, pool) in [(1, (0, 1)), (2, (0, 2))] {
                own(
                    &mut graphs,
                    1,
                    OwnPool::Made { handle, pool, rules: OwnRules { of_thread, ..OwnRules::default() } },
                );
                own(&mut graphs, 1, OwnPool::Begins { pool });
            }
            assert_eq!(graphs.pool_of(1, 0, 7), taken);
            own(&mut graphs, 1, OwnPool::Ends { pool: (0, u64::from(taken)) });
            assert_eq!(graphs.pool_of(1, 0, 7), 3 - taken);
        }
    }

    /// An object from before the recording holds its pool between its uses; a pool that graphs share goes with the last of them.
    #[test]
    fn objects_from_before() {
        let mut graphs = Graphs::default();
        for _ in 0..2 {
            own(&mut graphs, 1, OwnPool::Begins { pool: (0, 4) });
            assert_eq!(graphs.pool_of(1, 0, 7), 1);
            own(&mut graphs, 1, OwnPool::Ends { pool: (0, 4) });
            assert_eq!(own(&mut graphs, 1, OwnPool::Released { pool: (0, 4) }), None);
        }
        assert!(graphs.is_of_object(1));
        captured(&mut graphs, 0xa, (0, 5));
        let released = own(&mut graphs, 1, OwnPool::Released { pool: (0, 5) });
        assert_eq!(released, Some(Unheld { private: 2, emptied: false }));
    }

    /// Calls from before the recording.
    #[test]
    fn what_began_before() {
        let mut graphs = Graphs::default();
        for change in [
            OwnPool::Gone { handle: 9 },
            OwnPool::Released { pool: (0, 4) },
            OwnPool::Ends { pool: (0, 4) },
            OwnPool::Gone { handle: 9 },
        ] {
            assert_eq!(own(&mut graphs, 1, change), None);
        }
    }
}
