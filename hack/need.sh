#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# need.sh COMMAND...: makes sure that the commands exist. Missing ones are installed when this is root on a machine with a known package
# manager, and what will be run is printed first; otherwise their packages are named and the script fails.
set -eu

package_of() {
	case "$1" in
	nft) echo nftables ;;
	conntrack) if command -v apt-get >/dev/null; then echo conntrack; else echo conntrack-tools; fi ;;
	ip) if command -v dnf >/dev/null; then echo iproute; else echo iproute2; fi ;;
	*) echo "$1" ;;
	esac
}

missing=""
for command in "$@"; do
	command -v "$command" >/dev/null || missing="$missing $(package_of "$command")"
done
[ -n "$missing" ] || exit 0

if command -v apt-get >/dev/null; then
	install="apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq$missing"
elif command -v dnf >/dev/null; then
	install="dnf install -y -q$missing"
elif command -v apk >/dev/null; then
	install="apk add --quiet$missing"
else
	echo "missing packages:$missing; install them with this machine's package manager" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "missing packages:$missing; as root: $install" >&2
	exit 1
fi
echo "installing:$missing ($install)"
sh -c "$install" >/dev/null
