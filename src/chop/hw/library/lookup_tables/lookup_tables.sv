// Tables with contents and connections built in: each looks one bit up by its input bits.
// Combinational pass-through: latency 0, throughput 1 beat per cycle.
//
// A table of six inputs is one LUT of an FPGA that has such.
`default_nettype none

module lookup_tables #(
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 1,  // input bits, one beat, up to 65536
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 1,  // tables, each gives a bit of the output beat
    parameter int TABLE_INPUTS                 = 1,  // inputs of each table, 1 to 6
    // Of each table 3 words of 64 bits: its bit for each of 64 addresses, then the numbers of six
    // input bits in the beat, 16 bits each, that of the lowest address bit first.
    parameter logic [DATA_OUT_0_TENSOR_SIZE_DIM_0*192-1:0] TABLES = '0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_TENSOR_SIZE_DIM_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_OUT_0_TENSOR_SIZE_DIM_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (TABLE_INPUTS < 1 || TABLE_INPUTS > 6) begin : g_refuse_inputs
    $error("lookup_tables: a table has 1 to 6 inputs, got %0d", TABLE_INPUTS);
  end
  if (DATA_IN_0_TENSOR_SIZE_DIM_0 < 1 || DATA_IN_0_TENSOR_SIZE_DIM_0 > 65536
      || DATA_OUT_0_TENSOR_SIZE_DIM_0 < 1) begin : g_refuse_size
    $error("lookup_tables: 1 to 65536 input bits and 1 or more tables, got %0d and %0d",
           DATA_IN_0_TENSOR_SIZE_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0);
  end
`endif

  assign data_out_0_valid = data_in_0_valid;
  assign data_in_0_ready  = data_out_0_ready;

  for (genvar number = 0; number < DATA_OUT_0_TENSOR_SIZE_DIM_0; number++) begin : g_table
    localparam logic [191:0] TABLE_WORDS = TABLES[number*192+:192];
    localparam logic [(1<<TABLE_INPUTS)-1:0] CONTENT = TABLE_WORDS[0+:1<<TABLE_INPUTS];
    logic [TABLE_INPUTS-1:0] address;
    for (genvar k = 0; k < TABLE_INPUTS; k++) begin : g_input
      localparam int SOURCE = 32'(TABLE_WORDS[64+k*16+:16]);
      assign address[k] = data_in_0[SOURCE];
    end
    assign data_out_0[number] = CONTENT[address];
  end

  wire logic unused_ok = &{1'b0, clk, rst, data_in_0};  // no table may read an input

endmodule

`default_nettype wire
