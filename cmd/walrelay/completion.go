package main

import (
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints the script that completes verbs, flags and their values.
func (c *completionCmd) Run(e *env) error {
	scripts := map[string]func(io.Writer, []completed){"bash": completeBash, "zsh": completeZsh, "fish": completeFish}
	var script strings.Builder
	scripts[c.Shell](&script, completions(e.settings.app.Node))
	_, err := io.WriteString(e.stdout, script.String())
	return err
}

// A completed is one verb as far as a shell needs to know it. The first one is
// the application itself.
type completed struct {
	path  string // such as "deadletters list"; empty for the application
	verbs []completedWord
	flags []completedFlag
	args  []string // values that an argument may have
}

type completedWord struct{ name, help string }

type completedFlag struct {
	completedWord
	values []string // that it may have; nil for others
	file   bool     // it names a file
	bare   bool     // it has no value
}

// completions reads the verbs from what kong knows.
func completions(n *kong.Node) []completed {
	c := completed{path: strings.TrimPrefix(n.FullPath(), "walrelay")}
	c.path = strings.TrimSpace(c.path)
	var below []completed
	for _, child := range n.Children {
		if !child.Hidden {
			c.verbs = append(c.verbs, completedWord{child.Name, firstSentence(child.Help)})
			below = append(below, completions(child)...)
		}
	}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			flag := completedFlag{completedWord: completedWord{f.Name, firstSentence(f.Help)}, bare: f.IsBool(), file: f.PlaceHolder == "FILE"}
			if f.Enum != "" {
				flag.values = f.EnumSlice()
			}
			c.flags = append(c.flags, flag)
		}
	}
	for _, a := range n.Positional {
		if a.Enum != "" {
			c.args = append(c.args, a.EnumSlice()...)
		}
	}
	sort.Slice(c.flags, func(i, j int) bool { return c.flags[i].name < c.flags[j].name })
	return append([]completed{c}, below...)
}

// firstSentence is what fits beside a name; shells quote it in their own way.
func firstSentence(help string) string {
	for _, end := range []string{". ", "; ", ": ", " ("} {
		help, _, _ = strings.Cut(help, end)
	}
	return strings.TrimSuffix(strings.NewReplacer("'", "", "`", "", `"`, "", "[", "", "]", "", `\`, "").Replace(help), ".")
}

// findVerb is the part that bash and zsh share: at becomes the verb that the
// words before the one at hand name, and a flag's value is passed over.
func findVerb(w io.Writer, list []completed, words, last string) {
	fmt.Fprintf(w, "    local at='' word skip='' i\n    for ((i = %s; i < %s; i++)); do\n", "1", last)
	fmt.Fprintf(w, "        word=%s\n", words)
	fmt.Fprint(w, `        if [[ -n $skip ]]; then
            [[ $word == '=' ]] || skip=''
            continue
        fi
        case "$at $word" in
`)
	for _, c := range list {
		for _, v := range c.verbs {
			fmt.Fprintf(w, "            '%s %s') at='%s' ;;\n", c.path, v.name, strings.TrimSpace(c.path+" "+v.name))
		}
	}
	valued := map[string]bool{}
	for _, c := range list {
		for _, f := range c.flags {
			if !f.bare {
				valued["--"+f.name] = true
			}
		}
	}
	names := make([]string, 0, len(valued))
	for name := range valued {
		names = append(names, "*' "+name+"'")
	}
	sort.Strings(names)
	fmt.Fprintf(w, "            %s) skip=1 ;;\n        esac\n    done\n", strings.Join(names, "|"))
}

func completeBash(w io.Writer, list []completed) {
	fmt.Fprint(w, `# bash completion of walrelay, made by walrelay completion bash.
# For this shell: source <(walrelay completion bash)
# For good: walrelay completion bash > /etc/bash_completion.d/walrelay
_walrelay() {
    local cur=${COMP_WORDS[COMP_CWORD]} flag=''
    COMPREPLY=()
`)
	findVerb(w, list, "${COMP_WORDS[i]}", "COMP_CWORD")
	fmt.Fprint(w, `    # --flag value, --flag=value: bash makes words of both, and one of the sign.
    if [[ $cur == '=' ]]; then
        cur='' flag=${COMP_WORDS[COMP_CWORD-1]}
    elif [[ ${COMP_WORDS[COMP_CWORD-1]} == '=' ]]; then
        flag=${COMP_WORDS[COMP_CWORD-2]}
    elif [[ -n $skip ]]; then
        flag=${COMP_WORDS[COMP_CWORD-1]}
    fi
    if [[ -n $flag ]]; then
        case "$at $flag" in
`)
	for _, c := range list {
		for _, f := range c.flags {
			switch {
			case f.values != nil:
				fmt.Fprintf(w, "            '%s --%s') COMPREPLY=($(compgen -W '%s' -- \"$cur\")) ;;\n", c.path, f.name, strings.Join(f.values, " "))
			case f.file:
				fmt.Fprintf(w, "            '%s --%s') COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n", c.path, f.name)
			}
		}
	}
	fmt.Fprint(w, `        esac
        return
    fi
    case "$at" in
`)
	for _, c := range list {
		words := append([]string{}, c.args...)
		for _, v := range c.verbs {
			words = append(words, v.name)
		}
		for _, f := range c.flags {
			words = append(words, "--"+f.name)
		}
		fmt.Fprintf(w, "        '%s') COMPREPLY=($(compgen -W '%s' -- \"$cur\")) ;;\n", c.path, strings.Join(words, " "))
	}
	fmt.Fprint(w, `    esac
}
complete -F _walrelay walrelay
`)
}

func completeZsh(w io.Writer, list []completed) {
	fmt.Fprint(w, `#compdef walrelay
# zsh completion of walrelay, made by walrelay completion zsh.
# For good: walrelay completion zsh > "${fpath[1]}/_walrelay"
_walrelay() {
    local -a verbs flags
    local cur=$words[CURRENT]
`)
	// Zsh counts words from 1, the command itself included.
	findVerb(w, list, "$words[i+1]", "CURRENT - 1")
	fmt.Fprint(w, `    if [[ -n $skip || $cur == --*=* ]]; then
        local flag=$words[CURRENT-1]
        if [[ $cur == --*=* ]]; then
            flag=${cur%%=*}
            compset -P '*='
        fi
        case "$at $flag" in
`)
	for _, c := range list {
		for _, f := range c.flags {
			switch {
			case f.values != nil:
				fmt.Fprintf(w, "            '%s --%s') compadd -- %s ;;\n", c.path, f.name, strings.Join(f.values, " "))
			case f.file:
				fmt.Fprintf(w, "            '%s --%s') _files ;;\n", c.path, f.name)
			}
		}
	}
	fmt.Fprint(w, `        esac
        return
    fi
    case "$at" in
`)
	for _, c := range list {
		fmt.Fprintf(w, "        '%s')\n            verbs=(", c.path)
		for _, a := range c.args {
			fmt.Fprintf(w, " '%s'", a)
		}
		for _, v := range c.verbs {
			fmt.Fprintf(w, " '%s:%s'", v.name, v.help)
		}
		fmt.Fprint(w, " )\n            flags=(")
		for _, f := range c.flags {
			fmt.Fprintf(w, " '--%s:%s'", f.name, f.help)
		}
		fmt.Fprint(w, " ) ;;\n")
	}
	fmt.Fprint(w, `    esac
    (( $#verbs )) && _describe -t verbs verb verbs
    (( $#flags )) && _describe -t flags flag flags
}
if [[ $funcstack[1] == _walrelay ]]; then
    _walrelay "$@"
else
    compdef _walrelay walrelay
fi
`)
}

func completeFish(w io.Writer, list []completed) {
	fmt.Fprint(w, `# fish completion of walrelay, made by walrelay completion fish.
# For good: walrelay completion fish > ~/.config/fish/completions/walrelay.fish
complete -c walrelay -f
`)
	for _, c := range list {
		condition := "__fish_use_subcommand"
		if c.path != "" {
			parts := strings.Split(c.path, " ")
			condition = "__fish_seen_subcommand_from " + parts[0]
			for _, part := range parts[1:] {
				condition += "; and __fish_seen_subcommand_from " + part
			}
		}
		for _, v := range c.verbs {
			not := ""
			if c.path != "" {
				var names []string
				for _, other := range c.verbs {
					names = append(names, other.name)
				}
				not = "; and not __fish_seen_subcommand_from " + strings.Join(names, " ")
			}
			fmt.Fprintf(w, "complete -c walrelay -n '%s%s' -a %s -d '%s'\n", condition, not, v.name, v.help)
		}
		for _, a := range c.args {
			fmt.Fprintf(w, "complete -c walrelay -n '%s' -a %s\n", condition, a)
		}
		for _, f := range c.flags {
			line := fmt.Sprintf("complete -c walrelay -n '%s' -l %s -d '%s'", condition, f.name, f.help)
			switch {
			case f.values != nil:
				line += " -x -a '" + strings.Join(f.values, " ") + "'"
			case f.file:
				line += " -r -F"
			case !f.bare:
				line += " -x"
			}
			fmt.Fprintln(w, line)
		}
	}
}
