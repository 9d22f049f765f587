// Package skill has the commands of skills.
package skill
