use super::{
    text::{render, stepped_text},
    *,
};
use crate::{
    follow::libraries::Placed,
    locate::site::{Site, SiteCost},
};

/// Linux 4.19 is refused, with the features that nothing can replace; other missing ones are listed as well.
#[test]
fn an_old_kernel_has_its_missing_features_listed() {
    let checks = kernel(Features::OF_LINUX_4_19, &[]);
    let [first, rest @ ..] = &*checks else { panic!("no checks") };
    assert_eq!(
        (first.name, first.state, first.mend.as_deref()),
        ("kernel", "missing", Some("use Linux 5.10 or newer"))
    );
    assert_eq!(first.found, "lacks global data in BPF objects (Linux 5.2) and bpf_probe_read_user (Linux 5.5)");
    let lesser: Vec<_> = rest.iter().map(|check| (check.name, check.state)).collect();
    let expected = ["transport", "links", "late libraries", "native stacks", "Python stacks"];
    assert_eq!(lesser, expected.map(|name| (name, "degraded")));
}

/// A library without probes is said to be none of ours; its name alone would read as a library that is fine.
#[test]
fn a_library_without_probes() {
    let text = |library| render(&Diagnosis { checks: Vec::new(), libraries: vec![line(library)] });
    let ours = Library { absent: vec!["aclrtMalloc"], ..Library::at(Path::new("/lib/libascendcl.so")) };
    assert!(!text(ours).contains("no library of Ascend"));
    assert_eq!(
        text(Library::at(Path::new("/bin/ls"))),
        "\n/bin/ls\n  no function that is probed: no library of Ascend\n"
    );
}

/// Each single-stepped site is named with its price, those of return instructions too, and no other.
#[test]
fn stepped_sites_have_their_price() {
    let placed = |symbol: &str, cost, own_returns, return_cost| Placed {
        row: 1,
        symbol: symbol.to_owned(),
        file_offset: 0x1000,
        site: Site { offset: 4, cost, instruction: "sub rsp, 8".to_owned(), places: None },
        with_return: own_returns == 0,
        located: None,
        own_returns,
        return_cost,
    };
    let (cheap, dear) = (SiteCost::Emulated, SiteCost::SingleStepped);
    let library = Library {
        placed: vec![
            placed("cheap", cheap, 0, dear),
            placed("clobbered", dear, 0, dear),
            placed("throws", cheap, 2, dear),
            placed("throws_on_arm", cheap, 2, cheap),
        ],
        ..Library::at(Path::new("/lib/libx.so"))
    };
    let text = stepped_text(&[line(library)]);
    let named: Vec<&str> = text.lines().skip(2).collect();
    // 12 µs for each instruction that is stepped, 0.6 for the other probe of the call.
    assert_eq!(
        named,
        [
            "   12.6 clobbered in libx.so: at `sub rsp, 8`",
            "   12.6 throws in libx.so: its return instructions, entry at `sub rsp, 8`"
        ]
    );
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("single-stepped")), "{text}");
}
