use super::*;

#[test]
fn signals_that_did_not_arrive() {
    assert_eq!(
        [(0, 1), (1, 2), (1, 5), (7, 1), (7, 3)].map(|(last, sent)| missing_between(last, sent)),
        [0, 0, 3, 0, 2]
    );
}

#[test]
fn late_signals_show_by_the_place_of_the_thread() {
    let site = WatchSite { stack_pointer: 0x7000, instruction_pointer: 0x400, ..WatchSite::default() };
    // After `push`, at the target of a jump, after `ret`, after `sub $0x1000, %rsp`.
    for place in [[0x6ff8, 0x401], [0x7000, 0x9000], [0x7008, 0x9000], [0x6000, 0x407]] {
        assert!(is_there(&site, place), "{place:#x?}");
    }
    for place in [[0x6000, 0x400], [0x6000, 0x410], [0x7100, 0x300]] {
        assert!(!is_there(&site, place), "{place:#x?}");
    }
}
