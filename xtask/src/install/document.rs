//! The commands of a document: what stands in its fences marked `sh`, by section.

use std::path::Path;

/// A document's commands.
pub struct Document {
    /// (heading, commands of one fence), in order.
    blocks: Vec<(String, String)>,
    name: String,
}

impl Document {
    /// Reads a Markdown file.
    pub fn read(path: &Path) -> Result<Document, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Document { blocks: blocks(&text), name: path.display().to_string() })
    }

    /// The commands of a section, fence by fence. There must be some.
    pub fn blocks(&self, section: &str) -> Result<Vec<&str>, String> {
        let of_section = self.blocks.iter().filter(|(heading, _)| heading == section);
        let blocks: Vec<&str> = of_section.map(|(_, commands)| commands.as_str()).collect();
        match blocks.is_empty() {
            true => Err(format!("{}: there are no commands (```sh) under \"{section}\"", self.name)),
            false => Ok(blocks),
        }
    }
}

fn blocks(text: &str) -> Vec<(String, String)> {
    let (mut blocks, mut heading, mut fence) = (Vec::new(), String::new(), None::<(bool, String)>);
    for line in text.lines() {
        match (&mut fence, line.strip_prefix("```")) {
            (None, Some(language)) => fence = Some((language.trim() == "sh", String::new())),
            (Some((wanted, commands)), Some(_)) => {
                if *wanted {
                    blocks.push((heading.clone(), std::mem::take(commands)));
                }
                fence = None;
            }
            (Some((_, commands)), None) => {
                commands.push_str(line);
                commands.push('\n');
            }
            (None, None) if line.starts_with('#') => heading = line.trim_start_matches('#').trim().to_string(),
            (None, None) => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_by_heading() {
        let text =
            "# A\n```sh\none\n# no heading\n```\n## B\n```text\nnot this\n```\n\n```sh\ntwo\n```\n```\nnor this\n```\n";
        let found = blocks(text);
        let expected = [("A", "one\n# no heading\n"), ("B", "two\n")];
        assert_eq!(found, expected.map(|(heading, commands)| (heading.to_string(), commands.to_string())));
    }

    #[test]
    fn the_installation_has_its_sections() {
        let document = Document::read(&crate::shell::root().join(super::super::DOCUMENT)).expect("the document");
        for section in
            ["From the package", "From the tarball", "First start", "Seeing that it works", "Upgrading", "Removing"]
        {
            assert!(!document.blocks(section).expect(section).is_empty());
        }
        assert!(document.blocks("Nowhere").is_err());
    }
}
