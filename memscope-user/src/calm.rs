//! Shrinks buffers after a burst.

use std::collections::VecDeque;

/// Of a queue.
pub(crate) fn queue<T>(queue: &mut VecDeque<T>) {
    const LITTLE: usize = 128;
    let wanted = if queue.is_empty() { 0 } else { queue.len().max(LITTLE) };
    if queue.capacity() > 4 * wanted {
        queue.shrink_to(2 * wanted);
    }
}

/// Shrinks a buffer with this many bytes used since the last call, and no more in it.
pub(crate) fn buffer(buffer: &mut Vec<u8>, used_bytes: usize) {
    const LITTLE: usize = 8 << 10;
    let wanted = used_bytes.max(LITTLE);
    if buffer.capacity() > 8 * wanted {
        buffer.shrink_to(2 * wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_shrink_when_little_is_left() {
        let mut items: VecDeque<u64> = (0..100_000).collect();
        queue(&mut items);
        assert!(items.capacity() >= 100_000);
        items.drain(..99_000);
        queue(&mut items);
        assert!((1000..=4096).contains(&items.capacity()) && items.iter().copied().eq(99_000..100_000));
        items.clear();
        queue(&mut items);
        assert_eq!(items.capacity(), 0);
    }

    /// While an eighth of it is used, it stays.
    #[test]
    fn buffers_shrink_when_little_is_used() {
        let mut bytes = Vec::with_capacity(1 << 20);
        buffer(&mut bytes, 1 << 17);
        assert!(bytes.capacity() >= 1 << 20);
        buffer(&mut bytes, 1 << 16);
        assert!((1 << 16..1 << 19).contains(&bytes.capacity()));
        bytes.resize(50_000, 7);
        buffer(&mut bytes, 0);
        assert_eq!(bytes, vec![7; 50_000]);
    }
}
