//! Free blocks by size: a rack for each stream, private pool and class of sizes.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::block::Id;
use super::list::FreeList;

/// Free blocks of one stream, smallest first; of equal ones the one at the lowest address.
#[derive(Debug, Default)]
pub(super) struct Rack {
    /// Class that it belongs to.
    pub(super) class: u16,
    pub(super) blocks: FreeList,
    /// Addresses without memory, of expandable segments.
    pub(super) unmapped: BTreeMap<u64, Id>,
}

/// Common part of the racks of one class of sizes of one pool.
#[derive(Debug, Default)]
pub(super) struct Class {
    /// Blocks of at most 1 MiB.
    pub(super) small: bool,
    /// Searches so far; the age of a free block is counted in them.
    pub(super) searches: u64,
    /// Its racks by the value of the stream's pointer, in the order of the allocator's walk.
    pub(super) racks: BTreeSet<(u64, u16)>,
}

/// All racks.
#[derive(Debug, Default)]
pub(super) struct Racks {
    pub(super) all: Vec<Rack>,
    pub(super) classes: Vec<Class>,
    lanes: BTreeMap<(u64, u16), u16>,
}

impl Racks {
    /// Number of the lane of a stream and a private pool, 0 being the default pool. Its rack of small blocks is twice
    /// that, the one of large blocks follows. `None`: beyond the limit.
    pub(super) fn lane(&mut self, stream: u64, private: u16) -> Option<u16> {
        if let Some(lane) = self.lanes.get(&(stream, private)) {
            return Some(*lane);
        }
        let lane = u16::try_from(self.all.len() / 2).ok().filter(|lane| *lane < u16::MAX / 2)?;
        while self.classes.len() < 2 * (usize::from(private) + 1) {
            self.classes.extend([Class { small: true, ..Class::default() }, Class::default()]);
        }
        for class in [2 * private, 2 * private + 1] {
            let rack = self.all.len() as u16;
            self.all.push(Rack { class, ..Rack::default() });
            self.classes[usize::from(class)].racks.insert((stream, rack));
        }
        self.lanes.insert((stream, private), lane);
        Some(lane)
    }

    pub(super) fn of(&mut self, rack: u16) -> &mut Rack {
        &mut self.all[usize::from(rack)]
    }

    pub(super) fn class_of(&mut self, rack: u16) -> &mut Class {
        let class = self.all[usize::from(rack)].class;
        &mut self.classes[usize::from(class)]
    }

    /// Its private pool; 0: the default one.
    pub(super) fn private(&self, rack: u16) -> u16 {
        self.all[usize::from(rack)].class / 2
    }

    /// The rack of the same stream and sizes in another private pool, if it has one.
    pub(super) fn alike(&self, rack: u16, private: u16) -> Option<u16> {
        let class = self.all[usize::from(rack)].class;
        let of_stream = |class: &Class| class.racks.iter().find(|(_, own)| *own == rack).map(|(stream, _)| *stream);
        let stream = of_stream(&self.classes[usize::from(class)])?;
        let alike = self.classes.get(usize::from(2 * private + class % 2))?;
        alike.racks.range((stream, 0)..=(stream, u16::MAX)).next().map(|(_, rack)| *rack)
    }

    pub(super) fn is_small(&self, rack: u16) -> bool {
        let class = self.all[usize::from(rack)].class;
        self.classes[usize::from(class)].small
    }

    /// Free blocks of a class, in the order of their streams, sizes and addresses.
    pub(super) fn of_class(&self, class: u16) -> Vec<Id> {
        let Some(class) = self.classes.get(usize::from(class)) else { return Vec::new() };
        let racks = class.racks.iter().map(|(_, rack)| &self.all[usize::from(*rack)]);
        racks.flat_map(|rack| rack.blocks.from(0).map(|(_, id)| id)).collect()
    }
}
