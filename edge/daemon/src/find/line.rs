//! Parsers for command lines of VMs. A command line is untrusted, since any user can choose its
//! bytes.

use slackline_live::vcpus::qemu_options::QemuOptions;

/// A program that runs VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Program {
    /// QEMU, with or without libvirt.
    Qemu,
    /// Firecracker, with or without its jailer.
    Firecracker,
    /// Cloud Hypervisor, from a release or a package.
    CloudHypervisor,
    /// crosvm, the VMM of ChromeOS.
    Crosvm,
    /// kvmtool, whose program is `lkvm`.
    Kvmtool,
}

/// Properties of a VM that its command line contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VmCommandLine {
    /// Program that runs the VM.
    pub(super) program: Program,
    /// Name of the VM as on the command line: any bytes but zero. `None` if the command line
    /// contains no name.
    pub(super) name: Option<Vec<u8>>,
    /// UUID of the VM, in lower case with dashes. `None` if the command line contains no UUID.
    pub(super) uuid: Option<String>,
}

/// Parses the command line of a VM in the format of procfs, in which each word ends with a zero
/// byte. Returns `None` if the program does not run VMs.
pub(super) fn read(line: &[u8]) -> Option<VmCommandLine> {
    let line = line.strip_suffix(&[0]).unwrap_or(line);
    let mut words = line.split(|&byte| byte == 0);
    let program = program(words.next()?)?;
    let rest: Vec<&[u8]> = words.collect();
    match program {
        Program::Qemu => qemu(&rest),
        Program::Firecracker => Some(firecracker(&rest)),
        Program::CloudHypervisor => Some(cloud_hypervisor(&rest)),
        Program::Crosvm | Program::Kvmtool => running(program, &rest),
    }
}

/// Returns the program that the first word of a command line names. `None` if that program does not
/// run VMs.
fn program(word: &[u8]) -> Option<Program> {
    let file = word.rsplit(|&byte| byte == b'/').next()?;
    // NixOS puts wrapper scripts before programs, whose files are then called `.NAME-wrapped`.
    let wrapped = file.strip_prefix(b".").and_then(|file| file.strip_suffix(b"-wrapped"));
    let file = wrapped.unwrap_or(file);
    let of_release = |prefix: &[u8]| {
        let version = file.strip_prefix(prefix).and_then(|rest| rest.first());
        version.is_some_and(u8::is_ascii_digit)
    };
    match file {
        b"qemu" | b"qemu-kvm" | b"kvm" => Some(Program::Qemu),
        _ if file.starts_with(b"qemu-system-") => Some(Program::Qemu),
        b"firecracker" => Some(Program::Firecracker),
        _ if of_release(b"firecracker-v") => Some(Program::Firecracker),
        b"cloud-hypervisor" | b"cloud-hypervisor-static" | b"cloud-hypervisor-static-aarch64" => {
            Some(Program::CloudHypervisor)
        }
        b"crosvm" => Some(Program::Crosvm),
        b"lkvm" | b"lkvm-static" | b"kvmtool" => Some(Program::Kvmtool),
        _ => None,
    }
}

/// QEMU's options without a value, sorted. All other options take one value. The value may look
/// like an option: a kernel argument can be `-name`.
const QEMU_FLAGS: [&str; 52] = [
    "S",
    "alt-grab",
    "async-teardown",
    "audio-help",
    "ctrl-grab",
    "curses",
    "daemonize",
    "enable-fips",
    "enable-kvm",
    "enable-sync-profile",
    "full-screen",
    "h",
    "help",
    "jitdump",
    "localtime",
    "mem-prealloc",
    "no-acpi",
    "no-fd-bootchk",
    "no-frame",
    "no-hpet",
    "no-kvm",
    "no-kvm-irqchip",
    "no-kvm-pit",
    "no-kvm-pit-reinjection",
    "no-quit",
    "no-reboot",
    "no-shutdown",
    "no-user-config",
    "nodefaults",
    "nodefconfig",
    "nographic",
    "old-param",
    "one-insn-per-tb",
    "only-migratable",
    "perfmap",
    "portrait",
    "preconfig",
    "rtc-td-hack",
    "s",
    "sdl",
    "semihosting",
    "show-cursor",
    "singlestep",
    "snapshot",
    "std-vga",
    "tdf",
    "usb",
    "version",
    "win2k-hack",
    "xen-attach",
    "xen-create",
    "xen-domid-restrict",
];

/// Parses QEMU's options. Returns `None` if this QEMU runs no VM: libvirt starts such a QEMU to
/// query its capabilities.
fn qemu(words: &[&[u8]]) -> Option<VmCommandLine> {
    let mut said = VmCommandLine { program: Program::Qemu, name: None, uuid: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        // A word that is not an option names a disk image.
        let Some(option) = word.strip_prefix(b"-") else { continue };
        let option = option.strip_prefix(b"-").unwrap_or(option);
        if QEMU_FLAGS.binary_search_by(|flag| flag.as_bytes().cmp(option)).is_ok() {
            continue;
        }
        let Some(value) = words.next() else { break };
        match option {
            // If an option is repeated, the last one counts.
            b"name" => said.name = guest(value).or(said.name),
            b"uuid" => said.uuid = uuid(value),
            b"machine" | b"M" => {
                let options = QemuOptions::parse(value);
                if options.get("type").unwrap_or(options.first()) == b"none" {
                    return None;
                }
            }
            _ => {}
        }
    }
    Some(said)
}

/// Returns the guest's name from the value of QEMU's option `-name`. The key `guest=` may be
/// omitted if it comes first.
fn guest(value: &[u8]) -> Option<Vec<u8>> {
    let options = QemuOptions::parse(value);
    let first = Some(options.first()).filter(|first| !first.contains(&b'='));
    let name = options.get("guest").or(first)?;
    (!name.is_empty()).then(|| name.to_vec())
}

/// Returns a UUID in lower case. `None` if the text is not a UUID.
fn uuid(text: &[u8]) -> Option<String> {
    let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, byte): (usize, &u8)| match is_dash(at) {
        true => *byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    let is_one = text.len() == 36 && text.iter().enumerate().all(fits);
    is_one.then(|| String::from_utf8_lossy(text).to_ascii_lowercase())
}

/// Firecracker's options without a value.
const FIRECRACKER_FLAGS: [&str; 9] = [
    "boot-timer",
    "enable-pci",
    "help",
    "no-api",
    "no-seccomp",
    "show-level",
    "show-log-origin",
    "snapshot-version",
    "version",
];

fn firecracker(words: &[&[u8]]) -> VmCommandLine {
    let id = long_option(words, "id", &FIRECRACKER_FLAGS);
    VmCommandLine { program: Program::Firecracker, name: id, uuid: None }
}

/// Cloud Hypervisor's options without a value, or with an optional value.
const CLOUD_HYPERVISOR_FLAGS: [&str; 6] = ["help", "version", "v", "watchdog", "pvpanic", "V"];

/// Parses Cloud Hypervisor's options. Cloud Hypervisor's VMs have no names, so the path of the API
/// socket identifies the VM.
fn cloud_hypervisor(words: &[&[u8]]) -> VmCommandLine {
    let of = |option| long_option(words, option, &CLOUD_HYPERVISOR_FLAGS);
    let socket = of("api-socket").map(|value| match QemuOptions::parse(&value).get("path") {
        Some(path) => path.to_vec(),
        None => value,
    });
    // A socket passed as a descriptor has no path.
    let socket = socket.filter(|path| !path.starts_with(b"fd=") && !path.is_empty());
    let uuid = of("platform").and_then(|value| uuid(QemuOptions::parse(&value).get("uuid")?));
    VmCommandLine { program: Program::CloudHypervisor, name: socket, uuid }
}

/// Parses the options of a program with subcommands, such as crosvm. Returns `None` if the
/// subcommand is not `run`, which starts a VM.
fn running(program: Program, words: &[&[u8]]) -> Option<VmCommandLine> {
    let at = words.iter().position(|word| *word == b"run")?;
    // Only options of the program may come before the command.
    if !words[..at].iter().all(|word| word.starts_with(b"-")) {
        return None;
    }
    let words = &words[at + 1..];
    let short = |option: &[u8]| {
        let pair = words.windows(2).find(|pair| pair[0] == option)?;
        Some(pair[1].to_vec())
    };
    let name = long_option(words, "name", &[]);
    let name = match program {
        Program::Kvmtool => name.or_else(|| short(b"-n")),
        _ => name,
    };
    Some(VmCommandLine { program, name: name.filter(|name| !name.is_empty()), uuid: None })
}

/// Returns the value of an option that is given as `--option VALUE` or `--option=VALUE`. `None` if
/// the option is missing. The options in `flags` take no value, and all other options take one.
fn long_option(words: &[&[u8]], option: &str, flags: &[&str]) -> Option<Vec<u8>> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        // Words after `--` are for another program.
        if *word == b"--" {
            return None;
        }
        let Some(found) = word.strip_prefix(b"--") else { continue };
        if let Some(value) = found.strip_prefix(option.as_bytes()) {
            match value {
                [] => return words.next().map(|value| value.to_vec()),
                [b'=', value @ ..] => return Some(value.to_vec()),
                _ => {}
            }
        }
        let is_flag = flags.iter().any(|flag| flag.as_bytes() == found);
        if !is_flag && !found.contains(&b'=') {
            words.next();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn table_of_valueless_qemu_options_is_sorted() {
        assert!(QEMU_FLAGS.is_sorted());
    }

    /// Files with command lines, one word per line. Each file begins with the expected result. The
    /// files of libvirt 9 and QEMU 7.2 were read from running guests. The other files were composed
    /// from the documented options of programs that were not available.
    const LINES: [&str; 11] = [
        include_str!("lines/qemu-7.2.txt"),
        include_str!("lines/libvirt-9.txt"),
        include_str!("lines/libvirt-odd-name.txt"),
        include_str!("lines/libvirt-asks.txt"),
        include_str!("lines/qemu.txt"),
        include_str!("lines/proxmox.txt"),
        include_str!("lines/firecracker.txt"),
        include_str!("lines/firecracker-jailed.txt"),
        include_str!("lines/cloud-hypervisor.txt"),
        include_str!("lines/crosvm.txt"),
        include_str!("lines/kvmtool.txt"),
    ];

    #[test]
    fn program_name_and_uuid_are_parsed_from_vm_command_lines() {
        for text in LINES {
            let (head, words) =
                text.split_once("\n\n").expect("the file has a result and a command line");
            let line: Vec<u8> =
                words.lines().flat_map(|word| [word.as_bytes(), &[0]]).flatten().copied().collect();
            let found = read(&line).map_or("nothing".to_owned(), |said| {
                let name = said.name.map(|name| String::from_utf8(name).expect("the name is text"));
                format!("{:?} {:?} {:?}", said.program, name, said.uuid)
            });
            assert_eq!(found, head);
        }
    }

    fn line(words: &[&[u8]]) -> Vec<u8> {
        words.iter().flat_map(|word| [*word, &[0]]).flatten().copied().collect()
    }

    fn name(words: &[&[u8]]) -> Option<Vec<u8>> {
        read(&line(words)).expect("the program runs a VM").name
    }

    #[test]
    fn qemu_option_value_is_never_parsed_as_an_option() {
        let qemu = b"/usr/bin/qemu-system-x86_64".as_slice();
        assert_eq!(name(&[qemu, b"-append", b"-name", b"-name", b"web"]), Some(b"web".into()));
        assert_eq!(name(&[qemu, b"-append", b"-name web"]), None);
        assert_eq!(name(&[qemu, b"-S", b"-name", b"a", b"-name", b"b"]), Some(b"b".into()));
        for flag in ["-perfmap", "-jitdump", "-xen-attach", "-xen-domid-restrict"] {
            assert_eq!(name(&[qemu, flag.as_bytes(), b"-name", b"web"]), Some(b"web".into()));
        }
        assert_eq!(name(&[qemu, b"-name"]), None);
        assert_eq!(name(&[qemu, b"-name", b""]), None);
        let firecracker = b"firecracker".as_slice();
        assert_eq!(name(&[firecracker, b"--api-sock", b"--id", b"--id", b"a"]), Some(b"a".into()));
        assert_eq!(name(&[firecracker, b"--no-api", b"--id=a"]), Some(b"a".into()));
        assert_eq!(name(&[firecracker, b"--", b"--id", b"a"]), None);
    }

    #[test]
    fn program_named_like_a_hypervisor_is_not_a_vm() {
        for program in ["qemu-img", "qemu-nbd", "firecracker-containerd", "virtqemud", "kvm-ok", ""]
        {
            assert_eq!(read(&line(&[program.as_bytes(), b"-name", b"web"])), None, "{program}");
        }
        assert_eq!(read(&line(&[b"crosvm", b"stop", b"/run/web.sock"])), None);
        assert_eq!(read(&line(&[b"lkvm", b"list", b"run"])), None);
        assert_eq!(read(b""), None);
    }

    #[test]
    fn malformed_uuid_on_a_vm_command_line_is_ignored() {
        assert_eq!(
            uuid(b"0F9C27AA-0000-4000-8000-00000000BEEF").as_deref(),
            Some("0f9c27aa-0000-4000-8000-00000000beef")
        );
        for no in ["", "0f9c27aa00004000800000000000beef", "0f9c27aa-0000-4000-8000-00000000beeg"] {
            assert_eq!(uuid(no.as_bytes()), None, "{no}");
        }
    }

    /// Generates a word of a command line: any bytes but zero.
    fn word() -> impl Strategy<Value = Vec<u8>> {
        vec(1_u8.., 0..24)
    }

    proptest! {
        /// QEMU's option `-name` has an arbitrary name, which may contain commas and equals signs.
        #[test]
        fn any_vm_name_that_libvirt_passes_to_qemu_is_parsed(
            guest in word().prop_filter("a name", |name| !name.is_empty()),
            between in vec(word(), 0..4),
        ) {
            let mut value = b"guest=".to_vec();
            for byte in &guest {
                value.push(*byte);
                // A comma is written twice.
                if *byte == b',' {
                    value.push(b',');
                }
            }
            value.extend_from_slice(b",debug-threads=on");
            let mut words: Vec<&[u8]> = vec![b"/usr/bin/qemu-system-x86_64", b"-name", &value];
            for other in &between {
                words.extend([b"-append".as_slice(), other]);
            }
            prop_assert_eq!(name(&words), Some(guest));
        }

        #[test]
        fn any_firecracker_id_on_a_command_line_is_parsed(id in word(), other in word()) {
            let joined = [b"--id=".as_slice(), &id].concat();
            let words: [&[u8]; 4] = [b"firecracker", b"--api-sock", &other, &joined];
            prop_assert_eq!(name(&words), Some(id));
        }

        #[test]
        fn arbitrary_vm_command_line_is_parsed_without_panic(
            program in prop::sample::select(vec![
                "qemu-system-x86_64", "kvm", "firecracker", "cloud-hypervisor", "crosvm", "lkvm",
            ]),
            rest in vec(any::<u8>(), 0..200),
        ) {
            let whole = [program.as_bytes(), &[0], &rest].concat();
            if let Some(name) = read(&whole).and_then(|said| said.name) {
                prop_assert!(!name.contains(&0));
            }
            read(&rest);
        }

        /// The command lines consist of options and their values in any order and number.
        #[test]
        fn random_sequence_of_vm_options_is_parsed_without_panic(
            words in vec(prop::sample::select(vec![
                "-name", "--name", "-n", "--id", "--id=a", "-uuid", "--platform", "uuid=1", "run",
                "-M", "none", "-machine", "guest=,,,", "a,b", "=", ",", "--", "-", "", "-S",
                "--api-socket", "path=", "fd=3",
            ]), 0..12),
        ) {
            for program in ["qemu-system-x86_64", "firecracker", "cloud-hypervisor", "lkvm"] {
                let mut all = vec![program.as_bytes()];
                all.extend(words.iter().map(|word| word.as_bytes()));
                read(&line(&all));
            }
        }
    }
}
