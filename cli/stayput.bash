# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for stayput in bash: commands, options, pids that listen, and their tags.

# Words of JSON that `stayput` prints: the values of a member, one a line.
_stayput_values() { # MEMBER COMMAND...
	local member=$1
	shift
	"$@" --json 2>/dev/null | grep -o "\"$member\":\"\\?[A-Za-z0-9_.:-]*" |
		sed 's/.*:"\?//'
}

# Options of a command, as its own help has them.
_stayput_options() {
	"$1" "$2" --help 2>/dev/null | grep -o -- '^  \(-h, \)\?--[a-z-]*' |
		sed 's/^  //; s/-h, //'
}

_stayput_tags() { # PROGRAM PID...
	local program=$1
	shift
	[ $# -gt 0 ] || return 0
	_stayput_values tag "$program" show "$@"
}

_stayput() {
	local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
	local previous=${COMP_WORDS[COMP_CWORD - 1]} words='' pids='' i

	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		words='run ps show pause resume top record metrics doctor help --help --version'
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
		return
	fi
	for ((i = 2; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} =~ ^[0-9]+$ ]] && pids+=" ${COMP_WORDS[i]}"
		# After "--" there is a command, with its own completion.
		if [ "${COMP_WORDS[i]}" = -- ]; then
			if declare -F _command_offset >/dev/null; then
				_command_offset $((i + 1))
			else
				mapfile -t COMPREPLY < <(compgen -c -f -- "$word")
			fi
			return
		fi
	done
	case $previous in
	--policy) words='host discard zero' ;;
	--log) words='error warn info debug' ;;
	--out | --control)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return
		;;
	--tag) # shellcheck disable=SC2086 # a word a pid
		words=$(_stayput_tags "$program" $pids) ;;
	--default | --regions | --rules | --exclude | --host-limit | --host-keep | --wait | \
		--interval-ms | --count) return ;;
	*)
		case $command in
		help) words='run ps show pause resume top record metrics doctor' ;;
		pause | resume | show | metrics | record)
			words=$(_stayput_values pid "$program" ps)
			;;
		esac
		case $command in
		pause | resume) # shellcheck disable=SC2086
			words+=" $(_stayput_tags "$program" $pids)" ;;
		esac
		[[ $word != -* ]] || words=$(_stayput_options "$program" "$command")
		;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

complete -F _stayput stayput
