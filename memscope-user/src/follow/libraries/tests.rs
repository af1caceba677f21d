use memscope_common::When;

use super::names::{is_loader, matches};
use super::*;
use crate::probes::Layer;

#[test]
fn libraries_match_with_and_without_version() {
    let spec = backend::builtin().find(|spec| spec.symbol == "halMemAlloc").expect("built in");
    let star = &ProbeSpec { libraries: &["vllm_ascend_C*.so"], ..*spec };
    assert!(matches(star, "vllm_ascend_C.cpython-311-aarch64-linux-gnu.so"));
    assert!(matches(star, "vllm_ascend_C.so"));
    assert!(!matches(star, "vllm_ascend_C.sox"));
    assert!(!matches(star, "my_vllm_ascend_C.so"));
    assert!(matches(spec, "libascend_hal.so"));
    assert!(matches(spec, "libascend_hal.so.1"));
    assert!(!matches(spec, "libascend_hal.sox"));
    assert!(!matches(spec, "myascend_hal.so"));
}

/// The rows that do not fit are the least important; all of them are named, and the rest keeps its order.
#[test]
fn few_rows_serve_the_most_important_layers() {
    let spec = |layer, symbol| -> &'static ProbeSpec {
        Box::leak(Box::new(ProbeSpec { layer, symbol, ..*backend::builtin().next().expect("a row") }))
    };
    let all = || {
        vec![
            spec(Layer::Pta, "p1"),
            spec(Layer::Hal, "h1"),
            spec(Layer::Mstx, "m1"),
            spec(Layer::Hal, "h2"),
            spec(Layer::Acl, "a1"),
            spec(Layer::Runtime, "r1"),
        ]
    };
    let names = |room| {
        let (served, unserved) = by_importance(all(), room);
        let names = |specs: Vec<&ProbeSpec>| specs.iter().map(|spec| spec.symbol).collect::<Vec<_>>().join(" ");
        (names(served), names(unserved))
    };
    assert_eq!(names(4), ("h1 h2 r1 a1".to_owned(), "m1 p1".to_owned()));
    assert_eq!(names(6), ("h1 h2 r1 a1 m1 p1".to_owned(), String::new()));
    assert_eq!(names(usize::MAX).1, "");
    assert_eq!(names(0).0, "");
}

/// Rows are reserved for loaders, however many there are, and none is forgotten.
#[test]
fn rows_are_kept_for_loaders() {
    let builtin = backend::builtin().count();
    for max_rows in [0, 1, 4, 5, 30] {
        let planner = Libraries::planner(max_rows, &[]);
        assert_eq!(planner.descriptions().len(), usize::from(max_rows.saturating_sub(4)).min(builtin));
        assert_eq!(planner.descriptions().len() + planner.unserved().len(), builtin);
    }
}

/// The user's rows come last and are served first, and unserved ones are named.
#[test]
fn rows_of_the_user_come_first() {
    let builtin = backend::builtin().next().expect("a row");
    let own = |symbol, when| -> &'static ProbeSpec { Box::leak(Box::new(ProbeSpec { symbol, when, ..*builtin })) };
    let user = [own("mine", When::Return), own("_Zmine", When::OwnReturn)];
    let names = |max_rows| {
        let planner = Libraries::planner(max_rows, &user);
        let last = planner.descriptions().last().map(|row| row.symbol.clone());
        (planner.descriptions().len(), last, planner.unserved().contains(&"_Zmine"))
    };
    assert_eq!(names(7), (3, Some("_Zmine".to_owned()), false));
    assert_eq!(names(5), (1, Some("mine".to_owned()), true));
    assert_eq!(names(4), (0, None, true));
}

#[test]
fn loaders_are_known_by_name() {
    for name in ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld-2.31.so", "ld-musl-x86_64.so.1"] {
        assert!(is_loader(name), "{name}");
    }
    assert!(!is_loader("libld-linux.so"));
}

/// A file is unused when no process has mapped it at two looks, one behind the other.
#[test]
fn what_nobody_maps_twice_is_unused() {
    let file = |inode| FileId { device: (8, 1), inode };
    let mut libraries = Libraries::planner(100, &[]);
    for inode in 1..=3 {
        libraries.files.insert(file(inode), Library::at(Path::new("/lib/libascendcl.so")));
    }
    let mut look = |mapped: &[u64]| {
        let mapped: HashSet<FileId> = mapped.iter().map(|inode| file(*inode)).collect();
        let unused = libraries.unused(&mapped, [file(4)].into_iter());
        let mut found: Vec<u64> = unused.iter().map(|id| id.inode).collect();
        found.sort_unstable();
        found
    };
    assert_eq!(look(&[1, 2]), [0; 0]);
    assert_eq!(look(&[1, 3]), [4]);
    assert_eq!(look(&[3, 4]), [2]);
    assert_eq!(look(&[1]), [2]);
    assert_eq!(look(&[2]), [3, 4]);
}
