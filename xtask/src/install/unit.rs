//! A systemd unit's text: as much of its language as ours uses, so that a test can do what systemd would.

use std::path::Path;

/// A unit's settings in order, of all sections.
pub struct Unit {
    settings: Vec<(String, String)>,
}

/// A command line of the unit.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Whether its failure is passed over.
    pub may_fail: bool,
}

impl Unit {
    /// Reads a unit.
    pub fn read(path: &Path) -> Result<Unit, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Unit::parse(&text))
    }

    /// Takes a unit apart. Comments and section names are left out.
    pub fn parse(text: &str) -> Unit {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';', '[']));
        let settings = lines.filter_map(|line| line.split_once('='));
        Unit { settings: settings.map(|(key, value)| (key.trim().into(), value.trim().into())).collect() }
    }

    /// The last value of a setting, `%S` and `%t` replaced as for a system unit.
    pub fn value(&self, key: &str) -> Option<String> {
        let last = self.settings.iter().rev().find(|(known, _)| known == key)?;
        Some(last.1.replace("%S", "/var/lib").replace("%t", "/run"))
    }

    /// The value of a setting that this test cannot do without.
    pub fn need(&self, key: &str) -> Result<String, String> {
        self.value(key).ok_or_else(|| format!("the unit has no {key}="))
    }

    /// All values of a setting that may stand there several times.
    pub fn values(&self, key: &str) -> Vec<String> {
        let all = self.settings.iter().filter(|(known, _)| known == key);
        all.map(|(_, value)| value.clone()).collect()
    }

    /// The limits that it sets: their names in small letters, and their values; none is infinity.
    pub fn limits(&self) -> Result<Vec<(String, Option<u64>)>, String> {
        let limits = self.settings.iter().filter_map(|(key, value)| Some((key.strip_prefix("Limit")?, value)));
        let told = |(name, value): (&str, &String)| match value.as_str() {
            "infinity" => Ok((name.to_lowercase(), None)),
            value => match value.parse() {
                Ok(number) => Ok((name.to_lowercase(), Some(number))),
                Err(_) => Err(format!("Limit{name}={value}: this test reads numbers and infinity only")),
            },
        };
        limits.map(told).collect()
    }

    /// A set of capabilities, as setpriv(1) takes it: none but these.
    pub fn capabilities(&self, key: &str) -> String {
        let names = self.value(key).unwrap_or_default().to_lowercase();
        let names = names.split_whitespace().map(|name| format!(",+{}", name.trim_start_matches("cap_")));
        format!("-all{}", names.collect::<String>())
    }

    /// The command lines of a setting.
    pub fn commands(&self, key: &str) -> Result<Vec<CommandLine>, String> {
        self.values(key)
            .iter()
            .map(|line| command_line(line).map_err(|reason| format!("{key}={line}: {reason}")))
            .collect()
    }

    /// The only command line of a setting.
    pub fn command(&self, key: &str) -> Result<CommandLine, String> {
        let mut commands = self.commands(key)?;
        match commands.len() {
            1 => Ok(commands.remove(0)),
            count => Err(format!("the unit has {count} {key}=, but must have one")),
        }
    }
}

/// Words between spaces; quotes, variables and specifiers are refused, because ours has none where this is asked.
fn command_line(line: &str) -> Result<CommandLine, String> {
    let (may_fail, line) = match line.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    if line.contains(['"', '\'', '$', '%', '\\']) {
        return Err("this test reads no quotes, variables or specifiers".into());
    }
    let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
    match words.first().is_some_and(|program| program.starts_with('/')) {
        true => Ok(CommandLine { words, may_fail }),
        false => Err("an absolute program is wanted".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Comment=no\n[Service]\nExecStartPre=-/bin/a b\nExecStart=/bin/c  d --e\nLimitMEMLOCK=infinity\n\
                        LimitNOFILE=65536\nAmbientCapabilities=CAP_BPF CAP_NET_RAW\nBound=\nWorkingDirectory=%S/sluice\n\
                        User=a\nUser=b\n";

    #[test]
    fn settings_are_read() {
        let unit = Unit::parse(TEXT);
        assert_eq!(unit.value("User").as_deref(), Some("b"));
        assert_eq!(unit.value("Comment"), None);
        assert_eq!(unit.value("WorkingDirectory").as_deref(), Some("/var/lib/sluice"));
        assert_eq!(unit.limits(), Ok(vec![("memlock".into(), None), ("nofile".into(), Some(65_536))]));
        assert!(Unit::parse("LimitNOFILE=1K:2K").limits().is_err());
        assert_eq!(unit.capabilities("AmbientCapabilities"), "-all,+bpf,+net_raw");
        assert_eq!(unit.capabilities("Bound"), "-all");
        assert!(unit.need("Group").is_err());
    }

    #[test]
    fn commands_are_words() {
        let unit = Unit::parse(TEXT);
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            unit.command("ExecStart"),
            Ok(CommandLine { words: words(&["/bin/c", "d", "--e"]), may_fail: false })
        );
        assert_eq!(unit.command("ExecStartPre"), Ok(CommandLine { words: words(&["/bin/a", "b"]), may_fail: true }));
        assert!(unit.command("ExecStop").is_err());
        for wrong in ["sluice run", "/bin/sh -c 'kill'", "/bin/a $B", ""] {
            assert!(command_line(wrong).is_err(), "{wrong}");
        }
    }
}
