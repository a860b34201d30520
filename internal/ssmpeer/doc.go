// Package ssmpeer is a peer of AWS for tests: Systems Manager (Run Command), STS and just enough of S3, over real HTTP on
// loopback. It checks signatures (AWS Signature Version 4, by an implementation of its own), refuses what AWS refuses
// (patterns and sizes of the API reference), keeps AWS's habits (a command that was just sent is not found yet, output is
// cut at 24,000 and 8,000 characters and empty until the end), and really runs the script of AWS-RunShellScript: as
// processes of the computer that the test runs on, or in a machine of its own with other users (Own). It keeps a journal of
// every call.
//
// What it does not have: policies of callers (a credential may do everything, unless a fault says otherwise), throttling
// of its own accord, documents other than the shell document, the agent's plugins other than aws:runShellScript.
package ssmpeer
